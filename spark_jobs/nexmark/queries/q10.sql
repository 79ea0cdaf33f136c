-- Bids with the day and the minute by which a file system would be partitioned.
-- mode: append
SELECT auction, bidder, price, dateTime, extra,
       date_format(dateTime, 'yyyy-MM-dd') AS dt, date_format(dateTime, 'HH:mm') AS hm, n AS newest
FROM bid
