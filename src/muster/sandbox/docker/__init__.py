"""The docker backend: sandboxes as containers of a Docker or Podman daemon. `backend` is the way in.

backend ─► image (prepare) ─► instance (a sandbox) over box (a container and its streams)
   └─ every call, in time: daemon        what is left behind: janitor, and by label labels
"""
