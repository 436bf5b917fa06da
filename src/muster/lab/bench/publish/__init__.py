"""Publication of weights, by every transport and form."""
