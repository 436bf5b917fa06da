"""The dialect that servers speak: both ends of it, and the replica behind it."""
