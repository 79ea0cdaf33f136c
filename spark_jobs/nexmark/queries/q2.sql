-- Bids on chosen auctions.
-- mode: append
SELECT auction, price, n AS newest
FROM bid
WHERE auction % 123 = 0
