"""The shop, a program of its own that runs in a task: standard library only, copied there as it is.

server ─► catalogue, checkout, account, workshops, office (what visitors do) ─► visit ─► pages, the store
"""
