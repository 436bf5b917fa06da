"""The report as text, HTML page and figures."""
