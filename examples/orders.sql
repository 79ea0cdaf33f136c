-- Orders and turnover of each customer; runs on Spark and on Flink.
--
--   ./faultline run query job=examples/orders.sql data=examples/orders.csv data_key=customer
--   ./faultline run query job=examples/orders.sql data=examples/orders.csv data_key=customer engine=flink
--
-- The next line is read without running the file: output mode, and the value that identifies the input.
-- JOB = {"output_mode": "update", "reflects": "count"}

-- A record is a line `customer,item,cents`, and its key is the customer.
CREATE TEMPORARY VIEW orders AS
SELECT `partition`, `offset`, `key` AS customer, TRY_CAST(REGEXP_EXTRACT(`value`, '([0-9]+)$', 1) AS BIGINT) AS cents
FROM records;

-- The counted rows: the first output of a key with a count >= n reflects its n-th row.
CREATE TEMPORARY VIEW tuples AS
SELECT `partition`, `offset`, customer AS `key` FROM orders;

-- The value begins with the count so far.
SELECT customer AS `key`, CONCAT(CAST(COUNT(*) AS STRING), ' ', CAST(COALESCE(SUM(cents), 0) AS STRING)) AS `value`
FROM orders
GROUP BY customer;
