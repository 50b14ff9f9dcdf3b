"""The outside made real: providers, verifiers, the CMS, keys and the queue."""
