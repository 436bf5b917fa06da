"""How published weights travel to the machine of an engine. No torch."""
