"""The namespace backend: bubblewrap, overlay layers, cgroups, and a bash on a terminal for each session."""
