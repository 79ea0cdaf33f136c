-- Bids as they are: what moving events costs.
-- mode: append
SELECT auction, bidder, price, dateTime, extra, n AS newest
FROM bid
