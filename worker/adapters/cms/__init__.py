"""The CMS as the receiver of publications."""
