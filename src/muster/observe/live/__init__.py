"""The live view of a run that goes on."""
