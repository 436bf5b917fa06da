"""Laboratory, which no run needs: emulated servers, simulated worlds, plans, benchmarks."""
