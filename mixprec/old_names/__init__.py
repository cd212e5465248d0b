"""Names and modules that programs of 2017 to 2020 use and that are gone; :mod:`mixprec.old_code` puts them back."""
