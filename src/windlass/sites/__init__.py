"""The catalog of sites: data in TOML, the merge of its scopes, its checks, and site detection."""
