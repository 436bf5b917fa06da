"""From a task's `ImageSpec` to frozen layers: `builder` is the way in.

dockerfile ─► recipe (words) ─► steps ─► builder ─► copying (tree, ignore) | workshop (provision) ─► layers
rootfs (archive, oci) ─► the layers that FROM names
"""
