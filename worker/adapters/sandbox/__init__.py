"""A small real server to play with: review provider, receipt verifier and CMS, with keys of its own. Never for live use."""
