-- Bids with the number of their channel, by its name or from the address.
-- mode: append
SELECT auction, bidder, price, channel,
       CASE lower(channel)
           WHEN 'apple' THEN '0'
           WHEN 'google' THEN '1'
           WHEN 'facebook' THEN '2'
           WHEN 'baidu' THEN '3'
           ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)
       END AS channel_id,
       n AS newest
FROM bid
WHERE lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
   OR url RLIKE '(&|^)channel_id=([^&]*)'
