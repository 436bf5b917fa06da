"""From a task's `ImageSpec` to frozen layers: `builder` is the way in.

sandbox.dockerfile (words) ─► steps ─► builder ─► copying (tree) | workshop (provision) ─► layers
rootfs (archive, oci) ─► the layers that FROM names
"""
