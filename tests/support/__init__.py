"""What tests share: real parts to test against, and the rule for a machine that lacks one."""
