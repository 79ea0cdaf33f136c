-- How many bids each bidder made in a session; ten seconds without a bid end it.
-- mode: append
-- event time: yes
SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime,
       max(n) AS newest
FROM bid
GROUP BY bidder, session_window(dateTime, '10 seconds')
