"""What no scheduler could beat: lower bounds on the time to a trainable batch, and fits to a run."""
