-- How many bids each bidder made in ten seconds of processing time: a batch belongs to the time at which it was planned.
-- mode: update
-- key: bidder, starttime
SELECT bidder, count(*) AS bid_count, span.start AS starttime, span.end AS endtime, max(n) AS newest
FROM (SELECT bidder, n, window(current_timestamp(), '10 seconds') AS span FROM bid)
GROUP BY bidder, span
