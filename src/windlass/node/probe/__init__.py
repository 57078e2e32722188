"""Detect the hardware of this node from /sys, /proc and /dev."""
