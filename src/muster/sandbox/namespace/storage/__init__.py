"""The files of a sandbox: frozen and writable layers, quotas, mounts."""
