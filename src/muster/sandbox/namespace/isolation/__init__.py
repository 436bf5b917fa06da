"""Isolation, what one may see and do: the command line of bubblewrap, system calls, accounts, tools."""
