"""sandbox: hands to work with (provision, execute)."""
