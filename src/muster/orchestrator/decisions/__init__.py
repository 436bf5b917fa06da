"""The decisions of a run: plain functions and objects that know no clock, engine, sandbox or file."""
