-- The highest bids of each ten seconds. Up to sixteen that share the highest price come out.
-- mode: append
-- event time: yes
SELECT highest.auction, highest.price, highest.bidder, highest.dateTime, highest.extra, newest
FROM (
    SELECT inline(filter(bids, bid -> bid.price = bids[0].price)) AS (auction, price, bidder, dateTime, extra), newest
    FROM (
        SELECT max_by(struct(auction, price, bidder, dateTime, extra), price, 16) AS bids, max(n) AS newest
        FROM bid
        GROUP BY window(dateTime, '10 seconds')
    )
) AS highest
