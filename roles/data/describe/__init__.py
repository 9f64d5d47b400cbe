"""What commands tell of data without a server: looks, descriptions, samples."""
