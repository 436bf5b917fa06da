"""The time to a trainable batch: common practice beside each part of Muster."""
