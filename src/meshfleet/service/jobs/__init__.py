"""Update jobs: firmware for many devices, one careful step after the other."""
