-- A quarter of a page (V8) is enough for marks only while what they replace can be pruned. A transaction left open anywhere in the
-- database forbids that, for as long as it lasts, and two marks of three then went to another page and to every index. With half of a page
-- free nearly all versions find room beside those that they replace, whoever is open. Holds for pages written from now on.
ALTER TABLE outbox.message SET (fillfactor = 50);
