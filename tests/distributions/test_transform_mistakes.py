"""What users get wrong, and what they are told; small things of the transform's own."""
