"""The catalog of sites: data in TOML, the merge of its scopes, its checks, and which machine this is."""
