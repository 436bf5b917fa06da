"""Parts of Muster that run inside vLLM, and how its server is started."""
