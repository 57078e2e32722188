"""The sub-commands of `windlass bench`: one short file each."""
