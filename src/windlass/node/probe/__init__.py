"""What hardware this node has, from /sys, /proc and /dev."""
