"""Can this file system and these workers feed the devices? Reads many small samples: files, a tar, a squashfs image.

The samples are written below PATH first, and removed afterwards."""
