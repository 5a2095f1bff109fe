"""Results for people: findings, a page, a table."""
