"""What every service needs and no service owns: errors, ids, settings, identity, serving."""
