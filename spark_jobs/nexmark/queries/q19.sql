-- The ten highest bids of each auction; of equal prices the earlier event is ranked higher.
-- mode: update
-- key: auction, rank_number
SELECT top.bid.*, top.place + 1 AS rank_number, newest
FROM (
    SELECT inline(transform(bids, (bid, place) -> struct(bid, place))) AS (bid, place), newest
    FROM (
        SELECT max_by(struct(auction, bidder, price, channel, url, dateTime, extra), struct(price, -n), 10) AS bids,
               max(n) AS newest
        FROM bid
        GROUP BY auction
    )
) AS top
