"""Lower bounds on the time to a trainable batch, which no scheduler could beat, and fits to a run."""
