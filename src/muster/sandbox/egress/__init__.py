"""The way out of a sandbox: an HTTP proxy with an allow list, in a process of its own.

    sandbox's own network namespace              host
    program ─► 127.0.0.1:3128 ═ listening socket ═► proxy process ─► rules ─► resolve once ─► that address

Law: a sandbox has no other way out, and no packet of it reaches a network of the host. `rules` decides (pure),
`http` reads and rewrites heads (pure), `proxy` carries bytes, `process` is the process, `door` is its client in
the controller, and the only part that others use.
"""
