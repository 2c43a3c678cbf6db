-- Holds the number until the migration that has it is merged.
DO 0;
