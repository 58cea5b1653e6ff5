"""Variables with which a process reaches an S3 server of a test's own."""


def s3_variables(address: str, key: str, secret: str) -> dict[str, str]:
    """Return the variables for the server at `address`, with these credentials."""
    return {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": address,
    }
