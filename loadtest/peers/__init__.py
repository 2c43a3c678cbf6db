"""What users would pick instead of foqs, each behind the same small interface."""
