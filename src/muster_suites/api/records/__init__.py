"""The records service, a program of its own that runs in a task: standard library only, copied there as it is.

server ─► rows, ledger, jobs (what clients do) ─► call, resources, the store
"""
