"""What no run needs: emulated servers, simulated worlds, plans, benchmarks."""
