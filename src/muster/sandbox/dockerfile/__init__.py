"""The words of a Dockerfile: from its text to what is to be done. Pure."""
