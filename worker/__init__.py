"""The product: domain rules, the store, the steps of a release, the adapters and the command line."""
